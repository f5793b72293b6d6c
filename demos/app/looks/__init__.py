"""What a visitor sees in every tab: controls, results, the race, cards and colours."""
