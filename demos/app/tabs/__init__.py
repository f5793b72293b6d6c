"""The tabs: of each modality one, named by its descriptor, with what its runs do."""
