//! Guest entry points: `CALLBACKOP_*` (public/callback.h).
