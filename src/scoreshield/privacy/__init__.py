"""Who is protected, how much noise that takes, how it is drawn, and what it promises."""
