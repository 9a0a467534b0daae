//! Runs real drivers' twins on the host against captured driver state and a model of the device.
