"""Clean-up of Spark's checkpoint folders on an object store, where Spark itself deletes nothing."""

from holdfast.cleaning.rules import Cleaning, Deletion, FolderCleaning, FolderFacts, KeptCut, ListedFile

__all__ = ["Cleaning", "Deletion", "FolderCleaning", "FolderFacts", "KeptCut", "ListedFile"]
