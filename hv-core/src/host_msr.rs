//! The processor's own model-specific registers, which may not exist.

/// Those of the CPU that runs this.
pub trait HostMsrs {
    /// Reads one; `None` if there is none.
    fn read(&mut self, index: u32) -> Option<u64>;
    /// Writes one. Whether there is one that takes the value.
    fn write(&mut self, index: u32, value: u64) -> bool;
}
