"""Parts shared by the sources: records of files, chat messages, prompt columns."""
