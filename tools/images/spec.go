package main

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

const (
	// programMode is the mode of directories and of executable files: readable for everybody, writable for root. The
	// file's own mode is not used, because it depends on the umask of the build.
	programMode = 0o755
	// dataMode is the mode of other files.
	dataMode = 0o644
	// linkMode is the mode of every symbolic link. Linux ignores it.
	linkMode = 0o777
	// worldWritable is the mode of /tmp.
	worldWritable = 0o1777
	// modeBits are the allowed bits of a directory's mode: permissions, and the sticky, group and user bits.
	modeBits = 0o7777
)

// imageSpec has the contents of an image.
type imageSpec struct {
	// name is the reference with its tag.
	name string
	// files are the programs; the first is the program of the image unless entrypoint is set.
	files []file
	// links are symbolic links.
	links []link
	// dirs are additional directories besides /tmp and the parents of files.
	dirs []dir
	// entrypoint is the program and its first arguments.
	entrypoint []string
	// noEntrypoint is true for an image whose program is in cmd, such as one with a shell.
	noEntrypoint bool
	// cmd has the arguments after the entry point. A container may replace them.
	cmd []string
	// user is UID:GID, or empty for root.
	user string
	// env is NAME=VALUE.
	env []string
	// labels are the image's labels.
	labels map[string]string
}

// file is a program on this machine, its place in the image without the leading slash, and its mode there; 0 is
// programMode for an executable file and dataMode for the rest.
type file struct {
	source, place string
	mode          int64
}

// link is a symbolic link of the image: its place without the leading slash, and its target.
type link struct{ place, target string }

// dir is an empty directory of the image, its place without the leading slash.
type dir struct {
	place    string
	mode     int64
	uid, gid int
}

// parseFile parses PATH, PATH=/PLACE or PATH=/PLACE=MODE, the mode in octal.
func parseFile(value string) (file, error) {
	source, rest, found := strings.Cut(value, "=")
	place, octal, hasMode := strings.Cut(rest, "=")
	if !found {
		place = "/" + filepath.Base(source)
	}
	inside, err := placeOf(place)
	if err != nil {
		return file{}, err
	}
	f := file{source: source, place: inside}
	if hasMode {
		f.mode, err = parseMode(octal)
	}
	return f, err
}

// parseMode parses a mode in octal.
func parseMode(octal string) (int64, error) {
	mode, err := strconv.ParseInt(octal, 8, 64)
	if err != nil || mode&^modeBits != 0 {
		return 0, fmt.Errorf("the mode %q is not octal: write it as in 1771", octal)
	}
	return mode, nil
}

// parseLink parses /PLACE=TARGET.
func parseLink(value string) (link, error) {
	place, target, _ := strings.Cut(value, "=")
	inside, err := placeOf(place)
	if err == nil && target == "" {
		err = fmt.Errorf("it is not /PLACE=TARGET, as in /bin/kubectl=kube")
	}
	return link{place: inside, target: target}, err
}

// parseDir parses /PLACE=MODE:UID:GID, the mode in octal.
func parseDir(value string) (dir, error) {
	place, rest, _ := strings.Cut(value, "=")
	inside, err := placeOf(place)
	if err != nil {
		return dir{}, err
	}
	parts := strings.Split(rest, ":")
	if len(parts) != 3 {
		return dir{}, fmt.Errorf("it is not /PLACE=MODE:UID:GID, as in /run/quartet=1771:0:10240")
	}
	mode, err := parseMode(parts[0])
	if err != nil {
		return dir{}, err
	}
	uid, err := strconv.ParseUint(parts[1], 10, 31)
	if err != nil {
		return dir{}, fmt.Errorf("the user %q is not a number", parts[1])
	}
	gid, err := strconv.ParseUint(parts[2], 10, 31)
	if err != nil {
		return dir{}, fmt.Errorf("the group %q is not a number", parts[2])
	}
	return dir{place: inside, mode: mode, uid: int(uid), gid: int(gid)}, nil
}

// placeOf returns an absolute, clean path of the image without its leading slash, as a layer names it.
func placeOf(place string) (string, error) {
	if !strings.HasPrefix(place, "/") || path.Clean(place) != place || place == "/" {
		return "", fmt.Errorf("the place %q is not an absolute path without . and .. in it", place)
	}
	return place[1:], nil
}

// userPattern matches UID:GID in numbers: an image without a base has no /etc/passwd for the translation of names.
var userPattern = regexp.MustCompile(`^([0-9]+:[0-9]+)?$`)

// tag returns the name, which must have a tag and may have no registry, as that of a well-known image.
func (s *imageSpec) tag() (name.Tag, error) {
	tag, err := name.NewTag(s.name)
	if err == nil && !strings.Contains(path.Base(s.name), ":") {
		err = errors.New("it has no tag: write it as NAME:TAG")
	}
	if err != nil {
		return name.Tag{}, fmt.Errorf("reading -name %q: %w", s.name, err)
	}
	return tag, nil
}

// check refuses an image that could not run or would not be reproducible.
func (s *imageSpec) check() error {
	if _, err := s.tag(); err != nil {
		return err
	}
	if !userPattern.MatchString(s.user) {
		return fmt.Errorf("-user %q is not UID:GID in numbers", s.user)
	}
	places := map[string]bool{}
	for _, f := range s.files {
		if places[f.place] {
			return fmt.Errorf("two files have the place /%s", f.place)
		}
		places[f.place] = true
	}
	for _, l := range s.links {
		if places[l.place] {
			return fmt.Errorf("/%s is named twice", l.place)
		}
		places[l.place] = true
	}
	for _, d := range s.dirs {
		if places[d.place] {
			return fmt.Errorf("/%s is named twice", d.place)
		}
		places[d.place] = true
	}
	if s.noEntrypoint {
		return nil
	}
	if len(s.entrypoint) == 0 {
		s.entrypoint = []string{"/" + s.files[0].place}
	}
	if !slices.ContainsFunc(s.files, func(f file) bool { return "/"+f.place == s.entrypoint[0] }) {
		return fmt.Errorf("-entrypoint %s is not one of the files", s.entrypoint[0])
	}
	return nil
}

// directories returns all directories of the layer, parents before their contents: the requested ones, /tmp, and the
// parents of every file, link and directory, which root owns and everybody may read.
func (s *imageSpec) directories() []dir {
	have := map[string]dir{}
	need := func(d dir) {
		if _, there := have[d.place]; !there {
			have[d.place] = d
		}
	}
	for _, d := range s.dirs {
		need(d)
	}
	need(dir{place: "tmp", mode: worldWritable})
	parents := func(place string) {
		for p := path.Dir(place); p != "."; p = path.Dir(p) {
			need(dir{place: p, mode: programMode})
		}
	}
	for _, d := range s.dirs {
		parents(d.place)
	}
	for _, f := range s.files {
		parents(f.place)
	}
	for _, l := range s.links {
		parents(l.place)
	}
	all := make([]dir, 0, len(have))
	for _, d := range have {
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b dir) int { return strings.Compare(a.place, b.place) })
	return all
}
