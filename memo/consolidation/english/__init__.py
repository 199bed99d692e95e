"""What people state in English about themselves: tables of words and patterns, and the steps that apply them. Pure."""

from memo.consolidation.english.corrections import CurrentStatements
from memo.consolidation.english.message_reader import MessageReader
from memo.consolidation.english.own_words import own_sentences

__all__ = ["CurrentStatements", "MessageReader", "own_sentences"]
