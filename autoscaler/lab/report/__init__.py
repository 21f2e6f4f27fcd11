"""What a proof looks like to people and programs: the table of the terminal, the JSON document, the HTML page."""
