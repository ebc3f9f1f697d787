"""What runs the tasks of a release: this process, Dask, Spark or Ray."""
