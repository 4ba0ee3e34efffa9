"""Work that is counted instead of timed."""


def steps_of(store, ask):
    """How many steps of SQLite's machine `ask(store)` takes, in hundreds."""
    taken = 0

    def count():
        nonlocal taken
        taken += 1

    store._db.set_progress_handler(count, 100)
    try:
        ask(store)
    finally:
        store._db.set_progress_handler(None, 0)
    return taken
