"""When to swing: pure policies, one small file each. They read a `ScheduleView` and return verdicts; a service carries these out."""
