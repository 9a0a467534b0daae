//! Whether another instance could be created now, by its files: the toolstack's configuration, and the kernel and initramfs that it names or an upgrade has
//! brought.

use super::xl_config::value_of;
use control::Image;
use std::path::Path;

/// What is not there, in words; `None`: all is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingFiles {
    /// Of the image that an upgrade has brought.
    pub image: Option<String>,
    /// Of the rest, which the configuration names.
    pub config: Option<String>,
}

impl MissingFiles {
    /// Why none could be created.
    pub fn why(&self) -> Option<&str> {
        self.image.as_deref().or(self.config.as_deref())
    }
}

/// Looks for the files that one of this configuration and image is made of.
pub fn missing(config: &Path, image: &Image) -> MissingFiles {
    let is_there = |path: &str| std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() > 0);
    let of_image = of_image(image, is_there);
    let of_config = match std::fs::read_to_string(config) {
        Ok(text) => of_config(&text, image, is_there).map(|what| format!("{}: {what}", config.display())),
        Err(error) => Some(format!("{}: {error}", config.display())),
    };
    MissingFiles { image: of_image, config: of_config }
}

fn of_image(image: &Image, is_there: impl Fn(&str) -> bool) -> Option<String> {
    let files = image.parts().into_iter().filter(|(key, _)| *key != "extra");
    let mut named = files.filter_map(|(key, path)| Some((key, path?)));
    named.find(|(_, path)| !is_there(path)).map(|(key, path)| gone(key, path))
}

/// What the image has instead is not looked for, nor what a boot loader finds, nor a name from which it cannot be seen where the file is.
fn of_config(text: &str, image: &Image, is_there: impl Fn(&str) -> bool) -> Option<String> {
    if value_of(text, "bootloader").is_some() {
        return None;
    }
    image.parts().into_iter().filter(|(key, instead)| *key != "extra" && instead.is_none()).find_map(|(key, _)| {
        let path = value_of(text, key)?.strings.pop()?;
        (path.starts_with('/') && !is_there(&path)).then(|| gone(key, &path))
    })
}

fn gone(key: &str, path: &str) -> String {
    format!("its {key} {path} is no file any more, or is empty")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(kernel: Option<&str>, ramdisk: Option<&str>) -> Image {
        Image { kernel: kernel.map(Into::into), ramdisk: ramdisk.map(Into::into), extra: Some("/no/file".into()) }
    }

    #[test]
    fn files_of_an_image_are_looked_for() {
        let is_there = |path: &str| path == "/k";
        assert_eq!(of_image(&image(Some("/k"), None), is_there), None);
        assert_eq!(of_image(&Image::default(), is_there), None);
        let said = of_image(&image(Some("/k"), Some("/r")), is_there).unwrap();
        assert!(said.contains("ramdisk /r"), "{said}");
    }

    #[test]
    fn files_of_a_configuration_are_looked_for_unless_the_image_has_others() {
        let text = "name = 'dd'\nkernel = '/k'; ramdisk = \"/r\"\npci = []\n";
        let of = |text: &str, image: &Image| of_config(text, image, |path| path == "/r");
        assert!(of(text, &Image::default()).unwrap().contains("kernel /k"));
        assert_eq!(of(text, &image(Some("/new"), None)), None);
        assert!(of("ramdisk = '/x'", &image(Some("/new"), None)).unwrap().contains("ramdisk /x"));
        for text in ["kernel = 'k'", "bootloader = 'pygrub'\nkernel = '/k'", "", "kernel = ["] {
            assert_eq!(of(text, &Image::default()), None, "{text}");
        }
    }

    #[test]
    fn a_configuration_that_is_gone_is_named() {
        let missing = missing(Path::new("/nowhere/dd.cfg"), &image(Some("/nowhere/vmlinuz"), None));
        assert!(missing.config.as_ref().unwrap().contains("/nowhere/dd.cfg"));
        assert!(missing.why().unwrap().contains("/nowhere/vmlinuz"), "the image's comes first");
        assert_eq!(MissingFiles::default().why(), None);
    }
}
