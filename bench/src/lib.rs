//! The side-by-side bench: what QEMU counted, as figures, tables and plots.
//!
//! The counting plugin (`plugin/count.c`) writes a line at each mark; `marks` reads them, `figures` makes numbers of
//! them, `table` compares systems, `plot` draws.

pub mod figures;
pub mod marks;
pub mod plot;
pub mod table;
