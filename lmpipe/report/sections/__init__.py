"""The report's sections: each module turns a run into one `Section`."""
