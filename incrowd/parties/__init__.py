"""Parties that need not trust a server: their roster, and sums of which only the sum is known."""

from incrowd.parties.roster import Card, Roster
from incrowd.parties.secure_sum import Member, SumPlan, SumServer
from incrowd.privacy.records import ShareRun

__all__ = ["Card", "Member", "Roster", "ShareRun", "SumPlan", "SumServer"]
