"""The dashboard: pages for people who look after collections, under ``/dashboard``.

* `routes`: the paths, and what each of them checks first.
* `viewers`: which collections a person sees, and as which caller a person asks.
* `facts`: the numbers of the pages, from the ledger, the policy and public facts; `charts` draws them.
* `reports`: the folder of pages of plans and audits.
* `templates`, `static`: the pages, one style sheet and two scripts. Nothing is fetched from elsewhere.
"""
