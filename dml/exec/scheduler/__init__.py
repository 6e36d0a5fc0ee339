"""The scheduling core is a pure step from events to actions; policies choose the task to start."""
