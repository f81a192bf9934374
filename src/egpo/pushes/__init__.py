"""Publish a trained model: a model card from what the run recorded, and the upload to a Hugging Face hub.

In: a run, a checkpoint in it, or a model that `egpo merge` wrote. Out: `cards/step_N.md` in the run folder, and a
commit in a model repository.

pushed_model.py  finds the model folder and its files, and verifies their digests. No torch unless files are verified
model_card.py    writes the card: what is unknown is left out, and every recorded text is escaped
hub.py           creates the repository, private unless asked otherwise, and uploads files and card in one commit
"""
