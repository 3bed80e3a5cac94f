"""The server: llama.cpp's own with Clover's patches, started, watched and stopped; the page that it shows."""
