"""Level tables: releases that answer with one of a few output levels."""
