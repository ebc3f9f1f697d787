"""What people see of releases, guarantees, plans, audits and ledgers in a notebook: HTML, figures, data frames."""
