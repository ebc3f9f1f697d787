from scoreshield.cli import main

main()
