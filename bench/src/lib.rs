//! The side-by-side bench: what QEMU counted, as figures, tables and plots.
//!
//! The counting plugin (`plugin/count.c`) writes a line at each mark; `marks` reads them, `figures` makes numbers of
//! them, `table` compares systems, `plot` draws; `arrivals` draws what came when. The profiling plugin (`plugin/profile.c`) writes which code ran between
//! two marks; `profile` divides that into components, `stacked` draws them.

pub mod arrivals;
pub mod figures;
pub mod marks;
pub mod plot;
pub mod profile;
pub mod stacked;
pub mod table;
