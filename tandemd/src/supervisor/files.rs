//! Whether another instance could be created now, by its files: the toolstack's configuration, and the kernel and
//! initramfs that it names or an upgrade has brought.

use super::xl_config::value_of;
use control::Image;
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// So often they are looked for.
const EACH: Duration = Duration::from_secs(2);
/// What has not been seen yet is waited for so long.
const FIRST: Duration = Duration::from_millis(100);

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

/// Looks for them in a thread: domain 0's disk may take long, or not answer for minutes, and who notices failures does
/// not wait for that.
#[derive(Debug, Default)]
pub struct Looker {
    /// The last answer; `None`: there was none yet.
    seen: Option<MissingFiles>,
    asked: Option<JoinHandle<MissingFiles>>,
    /// When it is asked again, if it has been.
    next: Option<Duration>,
}

impl Looker {
    /// What was missing when it was looked last. `now`: time since the machine's start. Nothing is, as far as is known,
    /// as long as there was no answer.
    pub fn look(&mut self, config: &Path, image: &Image, now: Duration) -> MissingFiles {
        self.hear();
        if self.asked.is_none() && self.next.is_none_or(|next| now >= next) {
            self.next = Some(now + EACH);
            let (config, image) = (config.to_path_buf(), image.clone());
            let look = move || missing(&config, &image);
            self.asked = std::thread::Builder::new().name("files".into()).spawn(look).ok();
        }
        if self.seen.is_none() {
            let until = Instant::now() + FIRST;
            while self.asked.as_ref().is_some_and(|asked| !asked.is_finished()) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.hear();
            // Nobody waits a second time.
            self.seen.get_or_insert_default();
        }
        self.seen.clone().unwrap_or_default()
    }

    fn hear(&mut self) {
        if let Some(asked) = self.asked.take_if(|asked| asked.is_finished()) {
            self.seen = asked.join().ok().or(self.seen.take());
        }
    }
}

/// What this reads on domain 0's disk, if it is done in time.
pub fn within<T: Send + 'static>(limit: Duration, read: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (to, answer) = mpsc::channel();
    let work = move || {
        // Nobody may wait for it any more.
        let _ = to.send(read());
    };
    std::thread::Builder::new().name("files".into()).spawn(work).ok()?;
    answer.recv_timeout(limit).ok()
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

/// What the image has instead is not looked for, nor what a boot loader finds, nor a name from which it cannot be seen
/// where the file is.
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
    fn no_look_waits_for_a_disk_that_does_not_answer() {
        let place = std::env::temp_dir().join(format!("tandemd-files-{}", std::process::id()));
        let _ = std::fs::remove_file(&place);
        // Who reads it waits until somebody writes.
        let made = std::process::Command::new("mkfifo").arg(&place).status().unwrap();
        assert!(made.success());
        let (mut looker, begin) = (Looker::default(), Instant::now());
        let mut look = |seconds| looker.look(&place, &Image::default(), Duration::from_secs(seconds));
        for second in 0..100 {
            assert_eq!(look(second), MissingFiles::default());
        }
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
        std::fs::write(&place, "kernel = '/nowhere/vmlinuz'").unwrap();
        let mut config = None;
        while config.is_none() && begin.elapsed() < Duration::from_secs(60) {
            config = look(100).config;
        }
        assert!(config.unwrap().contains("/nowhere/vmlinuz"));
        std::fs::remove_file(&place).unwrap();
        // What one has said stays until the next one has.
        assert!(look(101).config.unwrap().contains("/nowhere/vmlinuz"));
    }

    #[test]
    fn what_is_not_read_in_time_is_done_without() {
        assert_eq!(within(Duration::from_secs(60), || 5), Some(5));
        let (_stays, never) = mpsc::channel::<u32>();
        let begin = Instant::now();
        assert_eq!(within(Duration::from_millis(10), move || never.recv()), None);
        assert!(begin.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn what_is_missing_is_known_at_the_first_look() {
        let looked = Looker::default().look(Path::new("/nowhere/dd.cfg"), &Image::default(), Duration::ZERO);
        assert!(looked.config.unwrap().contains("/nowhere/dd.cfg"));
    }

    #[test]
    fn a_configuration_that_is_gone_is_named() {
        let missing = missing(Path::new("/nowhere/dd.cfg"), &image(Some("/nowhere/vmlinuz"), None));
        assert!(missing.config.as_ref().unwrap().contains("/nowhere/dd.cfg"));
        assert!(missing.why().unwrap().contains("/nowhere/vmlinuz"), "the image's comes first");
        assert_eq!(MissingFiles::default().why(), None);
    }
}
