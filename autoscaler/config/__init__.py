"""Configuration: policies, annotations, settings of the process, and checks of files before they are applied."""
