//! Facts that only the initial domain sees: its VGA console description (public/xen.h, `dom0_vga_console_info`).

/// `VgaConsoleInfo::video_type`: 80x25 text.
pub const XEN_VGATYPE_TEXT_MODE_3: u8 = 0x03;
/// A VESA linear frame buffer.
pub const XEN_VGATYPE_VESA_LFB: u8 = 0x23;
/// A linear frame buffer of EFI.
pub const XEN_VGATYPE_EFI_LFB: u8 = 0x70;

/// Offset of the description inside the start-info page: directly behind `start_info`.
pub const INFO_OFFSET: u32 = 1168;
/// Size of the description in bytes.
pub const INFO_SIZE: u32 = 40;

/// What the screen shows when domain 0 starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VgaConsoleInfo {
    /// Text mode.
    Text {
        /// Height of a character in pixels.
        font_height: u16,
        /// Column of the cursor.
        cursor_x: u16,
        /// Row of the cursor.
        cursor_y: u16,
        /// Rows.
        rows: u16,
        /// Columns.
        columns: u16,
    },
    /// A frame buffer.
    Framebuffer {
        /// Whether EFI set it up, rather than VESA.
        is_efi: bool,
        /// Pixels across.
        width: u16,
        /// Pixels down.
        height: u16,
        /// Bytes from line to line.
        bytes_per_line: u16,
        /// Bits of a pixel.
        bits_per_pixel: u16,
        /// Machine address.
        base: u64,
        /// Size in 64 KiB for VESA, in bytes for EFI.
        size: u32,
        /// Position and width in bits of red, green, blue and the rest.
        colours: [u8; 8],
    },
}

impl VgaConsoleInfo {
    /// The text mode in which BIOS machines start.
    pub const TEXT_80X25: Self = Self::Text { font_height: 16, cursor_x: 0, cursor_y: 0, rows: 25, columns: 80 };

    /// The structure as it lies in memory.
    pub fn to_bytes(&self) -> [u8; 40] {
        let mut out = [0; 40];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        match *self {
            Self::Text { font_height, cursor_x, cursor_y, rows, columns } => {
                put(0, &[XEN_VGATYPE_TEXT_MODE_3]);
                for (i, field) in [font_height, cursor_x, cursor_y, rows, columns].into_iter().enumerate() {
                    put(4 + 2 * i, &field.to_le_bytes());
                }
            }
            Self::Framebuffer { is_efi, width, height, bytes_per_line, bits_per_pixel, base, size, colours } => {
                put(0, &[if is_efi { XEN_VGATYPE_EFI_LFB } else { XEN_VGATYPE_VESA_LFB }]);
                for (i, field) in [width, height, bytes_per_line, bits_per_pixel].into_iter().enumerate() {
                    put(4 + 2 * i, &field.to_le_bytes());
                }
                let base = base.to_le_bytes();
                put(12, &base[..4]);
                put(16, &size.to_le_bytes());
                put(20, &colours);
                put(36, &base[4..]);
            }
        }
        out
    }
}

const _: () = assert!(core::mem::size_of::<crate::start_info::StartInfo>() == INFO_OFFSET as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_mode_fields() {
        let bytes = VgaConsoleInfo::TEXT_80X25.to_bytes();
        assert_eq!(bytes[0], 3);
        assert_eq!(bytes[4..14], [16, 0, 0, 0, 0, 0, 25, 0, 80, 0]);
    }

    #[test]
    fn framebuffer_base_is_split() {
        let info = VgaConsoleInfo::Framebuffer {
            is_efi: true,
            width: 1024,
            height: 768,
            bytes_per_line: 4096,
            bits_per_pixel: 32,
            base: 0x1_8000_0000,
            size: 3 << 20,
            colours: [8, 16, 8, 8, 8, 0, 8, 24],
        };
        let bytes = info.to_bytes();
        assert_eq!(bytes[0], XEN_VGATYPE_EFI_LFB);
        assert_eq!(bytes[12..16], 0x8000_0000u32.to_le_bytes());
        assert_eq!(bytes[36..40], 1u32.to_le_bytes());
        assert_eq!(bytes[20..28], [8, 16, 8, 8, 8, 0, 8, 24]);
    }
}
