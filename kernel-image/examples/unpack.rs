//! Unpacks a kernel image given as the first argument; writes the ELF file to the second, if there is one.

use kernel_image::Image;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let file = std::fs::read(args.next().ok_or("usage: unpack IMAGE [ELF]")?)?;
    let mut unpacked = Vec::new();
    let elf = match Image::parse(&file).map_err(|error| error.to_string())? {
        Image::Elf(elf) => elf,
        Image::Packed(payload) => {
            unpacked.resize(payload.unpacked_len, 0);
            payload.unpack(&mut unpacked).map_err(|error| error.to_string())?;
            &unpacked
        }
    };
    println!("{} bytes", elf.len());
    if let Some(path) = args.next() {
        std::fs::write(path, elf)?;
    }
    Ok(())
}
