//! Access to driver-domain memory for code of the runtime.
//!
//! Addresses are the twin's: kernel addresses of the driver domain, or addresses in the unsafe area. The implementation
//! checks them as it would check the twin's own accesses; a [`Fault`] ends the invocation. The domain runs at the same
//! time on another CPU, so each word is read once, and what is read-modify-written is done by compare-and-exchange.

/// An address that the twin may not access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The address as the driver named it.
    pub address: u64,
    /// Whether it was to be written.
    pub write: bool,
}

/// So often is it tried to change a word that others change: each try may wait for a device, which answers in a
/// microsecond, or in ten.
pub const TRIES: u32 = 32;

/// Driver-domain memory as the twin sees it.
pub trait Memory {
    /// Reads bytes.
    ///
    /// # Errors
    /// If any of them may not be read.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), Fault>;

    /// Writes bytes.
    ///
    /// # Errors
    /// If any of them may not be written.
    fn write(&self, address: u64, from: &[u8]) -> Result<(), Fault>;

    /// Atomically replaces an aligned word if it is `old`. Returns what was there.
    ///
    /// # Errors
    /// If it may not be written or is not aligned.
    fn exchange_u32(&self, address: u64, old: u32, new: u32) -> Result<u32, Fault>;

    /// The same for eight bytes.
    ///
    /// # Errors
    /// As for [`Self::exchange_u32`].
    fn exchange_u64(&self, address: u64, old: u64, new: u64) -> Result<u64, Fault>;

    /// Reads a device's register of 1, 2 or 4 bytes: by one access of this size, where there is a device.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn read_device(&self, address: u64, bytes: u32) -> Result<u64, Fault> {
        let mut word = [0; 8];
        self.read(address, word.get_mut(..bytes as usize).unwrap_or(&mut []))?;
        Ok(u64::from_le_bytes(word))
    }

    /// Writes a device's register of 1, 2 or 4 bytes alike.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn write_device(&self, address: u64, bytes: u32, value: u32) -> Result<(), Fault> {
        self.write(address, value.to_le_bytes().get(..bytes as usize).unwrap_or(&[]))
    }

    /// Reads one byte.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn u8(&self, address: u64) -> Result<u8, Fault> {
        let mut b = [0; 1];
        self.read(address, &mut b).map(|()| b[0])
    }

    /// Reads two bytes.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn u16(&self, address: u64) -> Result<u16, Fault> {
        let mut b = [0; 2];
        self.read(address, &mut b).map(|()| u16::from_le_bytes(b))
    }

    /// Reads four bytes.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn u32(&self, address: u64) -> Result<u32, Fault> {
        let mut b = [0; 4];
        self.read(address, &mut b).map(|()| u32::from_le_bytes(b))
    }

    /// Reads eight bytes.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn u64(&self, address: u64) -> Result<u64, Fault> {
        let mut b = [0; 8];
        self.read(address, &mut b).map(|()| u64::from_le_bytes(b))
    }

    /// Reads words of four bytes: those that are so many bytes behind `address`.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn u32s<const N: usize>(&self, address: u64, members: [u64; N]) -> Result<[u32; N], Fault> {
        let mut words = [0; N];
        for (word, member) in words.iter_mut().zip(members) {
            *word = self.u32(address.wrapping_add(member))?;
        }
        Ok(words)
    }

    /// Reads words of eight bytes alike.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn u64s<const N: usize>(&self, address: u64, members: [u64; N]) -> Result<[u64; N], Fault> {
        let mut words = [0; N];
        for (word, member) in words.iter_mut().zip(members) {
            *word = self.u64(address.wrapping_add(member))?;
        }
        Ok(words)
    }

    /// Writes one byte.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn put_u8(&self, address: u64, value: u8) -> Result<(), Fault> {
        self.write(address, &[value])
    }

    /// Writes two bytes.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn put_u16(&self, address: u64, value: u16) -> Result<(), Fault> {
        self.write(address, &value.to_le_bytes())
    }

    /// Writes four bytes.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn put_u32(&self, address: u64, value: u32) -> Result<(), Fault> {
        self.write(address, &value.to_le_bytes())
    }

    /// Writes eight bytes.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn put_u64(&self, address: u64, value: u64) -> Result<(), Fault> {
        self.write(address, &value.to_le_bytes())
    }

    /// Reads one byte, which are so many bytes behind `address`: of a member of the structure there.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn member_u8(&self, address: u64, member: u64) -> Result<u8, Fault> {
        self.u8(address.wrapping_add(member))
    }

    /// Writes one byte alike.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn put_member_u8(&self, address: u64, member: u64, value: u8) -> Result<(), Fault> {
        self.put_u8(address.wrapping_add(member), value)
    }

    /// Reads two bytes, which are so many bytes behind `address`: of a member of the structure there.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn member_u16(&self, address: u64, member: u64) -> Result<u16, Fault> {
        self.u16(address.wrapping_add(member))
    }

    /// Writes two bytes alike.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn put_member_u16(&self, address: u64, member: u64, value: u16) -> Result<(), Fault> {
        self.put_u16(address.wrapping_add(member), value)
    }

    /// Reads four bytes, which are so many bytes behind `address`: of a member of the structure there.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn member_u32(&self, address: u64, member: u64) -> Result<u32, Fault> {
        self.u32(address.wrapping_add(member))
    }

    /// Writes four bytes alike.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn put_member_u32(&self, address: u64, member: u64, value: u32) -> Result<(), Fault> {
        self.put_u32(address.wrapping_add(member), value)
    }

    /// Reads eight bytes, which are so many bytes behind `address`: of a member of the structure there.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn member_u64(&self, address: u64, member: u64) -> Result<u64, Fault> {
        self.u64(address.wrapping_add(member))
    }

    /// Writes eight bytes alike.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn put_member_u64(&self, address: u64, member: u64, value: u64) -> Result<(), Fault> {
        self.put_u64(address.wrapping_add(member), value)
    }

    /// Copies `len` bytes upwards, in chunks. Regions that overlap with `to` above `from` are the caller's business.
    ///
    /// # Errors
    /// At the first byte that may not be accessed; what was copied stays.
    fn copy(&self, to: u64, from: u64, len: u64) -> Result<(), Fault> {
        let mut chunk = [0; 256];
        let mut done = 0;
        while done < len {
            let now = usize::try_from(len - done).unwrap_or(usize::MAX).min(chunk.len());
            let Some(part) = chunk.get_mut(..now) else { break };
            self.read(from.wrapping_add(done), part)?;
            self.write(to.wrapping_add(done), part)?;
            done += now as u64;
        }
        Ok(())
    }

    /// Fills `len` bytes.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn fill(&self, to: u64, value: u8, len: u64) -> Result<(), Fault> {
        let chunk = [value; 256];
        let mut done = 0;
        while done < len {
            let now = usize::try_from(len - done).unwrap_or(usize::MAX).min(chunk.len());
            self.write(to.wrapping_add(done), chunk.get(..now).unwrap_or(&[]))?;
            done += now as u64;
        }
        Ok(())
    }

    /// Atomically applies `change` to four bytes until nobody interferes, or `change` declines. Returns the old value
    /// and whether it was changed. After [`TRIES`] somebody else is hostile, or it is a register that counts, and it
    /// faults.
    ///
    /// # Errors
    /// As [`Self::exchange_u32`].
    fn update_u32(&self, address: u64, change: impl Fn(u32) -> Option<u32>) -> Result<(u32, bool), Fault> {
        for _ in 0..TRIES {
            let old = self.u32(address)?;
            let Some(new) = change(old) else { return Ok((old, false)) };
            if self.exchange_u32(address, old, new)? == old {
                return Ok((old, true));
            }
        }
        Err(Fault { address, write: true })
    }

    /// The same for eight bytes.
    ///
    /// # Errors
    /// As [`Self::exchange_u64`].
    fn update_u64(&self, address: u64, change: impl Fn(u64) -> Option<u64>) -> Result<(u64, bool), Fault> {
        for _ in 0..TRIES {
            let old = self.u64(address)?;
            let Some(new) = change(old) else { return Ok((old, false)) };
            if self.exchange_u64(address, old, new)? == old {
                return Ok((old, true));
            }
        }
        Err(Fault { address, write: true })
    }
}
