"""A recorded run as a Perfetto trace, to be opened in ui.perfetto.dev.

    entries ─┬─▶ Diary       every entry as an instant of its source, with flows from cause to effect
             ├─▶ Activities  slices: requests, samples, steps, swings and their phases, what every device does, incarnations
             └─▶ Gauges      counters: ready, in flight, version, what the devices go back at
                    └─▶ TraceWriter ─▶ protobuf, one packet each, in the order of the log

Times are those of the run's one clock, which never goes back, so that no entry stands before one of a lower position.
"""
