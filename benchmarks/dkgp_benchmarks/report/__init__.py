"""The report of the papers' experiments: a folder with a page, and a record and pictures of each part."""
