# Unpack Debian packages into two trees: /build-root has all of them, /image-root those of the image.
# Their scripts are not run: nothing in the images needs them.
debs=$1

unpack() { # unpack ROOT LIST
    root=$1
    mkdir -p "$root/usr/bin" "$root/usr/sbin" "$root/usr/lib" "$root/usr/lib64"
    for name in bin sbin lib lib64; do ln -s "usr/$name" "$root/$name"; done # merged /usr
    mkdir -p "$root/var/lib/dpkg/status.d" "$root/tmp"
    while read -r deb; do
        dpkg-deb --fsys-tarfile "$debs/$deb" | tar -x -C "$root" --keep-directory-symlink -p
        dpkg-deb -f "$debs/$deb" >"$root/var/lib/dpkg/status.d/${deb%%_*}"
    done <"$2"
}

unpack /build-root "$debs/build.list"
unpack /image-root "$debs/image.list"
