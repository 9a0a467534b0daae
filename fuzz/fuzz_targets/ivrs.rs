//! Any IVRS table: read to its end, and nothing in the result that is not in the table.
#![no_main]

libfuzzer_sys::fuzz_target!(|table: &[u8]| hv_core::iommu::ivrs::check_table(table));
