"""The classes of faults: each with how many of its cases a short campaign takes."""
from crashes import crash, failing, kills
from damaged_files import damaged
from environments import environment
from hostile_settings import hostile_settings
from lost_work import lost

ALL = {"crash": (crash, 24), "failing": (failing, 16), "kills": (kills, 6), "damaged": (damaged, 60), "settings": (hostile_settings, 40),
       "environment": (environment, 32), "lost": (lost, 24)}
