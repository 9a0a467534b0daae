//! Event channels: `EVTCHNOP_*`, 2-level and FIFO layouts (public/event_channel.h).
