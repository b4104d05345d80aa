"""What `runviewctl` does, one file per idea: functions that return the result twice, as plain data and as text for a person."""

from assets.commands.common import Answer, project_of, runner_of
from assets.commands.run import load_lines, release_summary, summary_text, view_summary
from assets.profile_steps import PROFILES

__all__ = ["PROFILES", "Answer", "load_lines", "project_of", "release_summary", "runner_of", "summary_text", "view_summary"]
