"""`egpo train RECIPE engine=verl`: our recipe as verl's, its process, and its run in our folder."""
