"""The trainer: forms batches from ready samples in log order, trains, publishes weights; lends and takes back its devices."""
