"""Pure text: chat templates, tool schemas, tool-call parsers."""
