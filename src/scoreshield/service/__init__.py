"""The HTTP service: private collections behind an address. What leaves it has been released.

A request passes these modules from top to bottom:

* `application`: the FastAPI application, its headers, its limits and its errors; `rest` holds the paths under ``/v1``.
* `sign_in`, `oidc`, `people`: people who sign in, by a password or a provider; with `key_paths` admins manage keys.
* `core`: who may ask, which release answers, and the signed body. Other interfaces use the same `Service` object.
* `answers`: the charge and the stored answer in one transaction, and what happens after a crash.
* `offers`: from the policy of a collection to the releases of the library.
* `collection`: the records, their public fields and the version of the data.
* `access`, `installation`, `policy`: API keys, the secrets of the installation, and the policy file.
* `events`: who signed in and who changed keys.
* `tables`: the database tables and their migrations.

Only this folder imports FastAPI, Uvicorn, SQLAlchemy, Alembic and Argon2 (extra ``service``), and joserfc (``oidc``).
"""
