"""verl as an engine, without a fork. Nothing here needs verl to be installed before verl itself calls it."""
