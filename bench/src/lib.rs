//! The side-by-side bench: what QEMU counted, as figures, tables and plots.
//!
//! The counting plugin (`plugin/count.c`) writes a line at each mark; `marks` reads them, `figures` makes numbers of
//! them, `table` compares systems, `plot` draws; `arrivals` draws what came when. The profiling plugin
//! (`plugin/profile.c`) writes which code ran between two marks; `profile` divides that into components, `stacked`
//! draws them. The plugin `plugin/touched.c` writes which memory the CPU touched between two marks; `working` makes
//! working sets of domains of that, `lines` draws them, and `reclaim` says what could be had of the rest.

pub mod arrivals;
pub mod figures;
pub mod lines;
pub mod marks;
pub mod plot;
pub mod profile;
pub mod reclaim;
pub mod stacked;
pub mod table;
pub mod working;
