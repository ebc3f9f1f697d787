"""Where the records are: files, or a version of a table. Only public facts are described."""
