//! The side-by-side bench: what QEMU counted, as figures, tables and plots.
//!
//! The counting plugin (`plugin/count.c`) writes a line at each mark; `marks` reads them, `table` compares systems.

pub mod marks;
