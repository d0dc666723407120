// Command initramfs creates the archive that a Linux kernel unpacks as its first file system: named files, and programs
// of this machine with their loader and shared libraries. The archive is not compressed, because unpacking would take
// longer than reading it. With -dir the files are written into a directory, for the root file system of a disk.
//
//	initramfs -out initramfs.cpio -file bin/init=/init -program /sbin/mount.nfs
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"
	"github.com/u-root/u-root/pkg/ldd"
)

// programMode is the mode of all files.
const programMode = 0o755

func main() {
	if err := run(os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "initramfs: %v\n", err)
		os.Exit(1)
	}
}

// run is main without the process's globals.
func run(args []string, stderr io.Writer) error {
	files := map[string]string{}
	flags := flag.NewFlagSet("initramfs", flag.ContinueOnError)
	flags.SetOutput(stderr)
	out := flags.String("out", "", "path of the archive")
	dir := flags.String("dir", "", "directory to write the files into, instead of an archive")
	flags.Func("file", "file of the archive, as PATH=/PLACE; repeatable", func(v string) error {
		source, place, found := strings.Cut(v, "=")
		if !found || source == "" || !path.IsAbs(place) {
			return errors.New("it is not PATH=/PLACE")
		}
		files[path.Clean(place)] = source
		return nil
	})
	flags.Func("program", "absolute path of a program, placed there with its loader and libraries; repeatable", func(v string) error {
		return addProgram(files, v)
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is not a flag: give each file with -file or -program", flags.Arg(0))
	}
	switch {
	case (*out == "") == (*dir == "") || len(files) == 0:
		return errors.New("-out or -dir, and -file or -program are required")
	case *dir != "":
		return copyFiles(*dir, files)
	default:
		return write(*out, files)
	}
}

// addProgram adds a program with what its loader would load.
func addProgram(files map[string]string, program string) error {
	if !filepath.IsAbs(program) {
		return errors.New("its path is not absolute")
	}
	libraries, err := ldd.List(program)
	if err != nil {
		return err
	}
	for _, file := range append(libraries, program) {
		files[path.Clean(file)] = file
	}
	return nil
}

// copyFiles writes files, which are sources by places, into a directory.
func copyFiles(dir string, files map[string]string) error {
	for place, source := range files {
		content, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		target := filepath.Join(dir, place)
		if err := os.MkdirAll(filepath.Dir(target), programMode); err != nil {
			return err
		}
		if err := os.WriteFile(target, content, programMode); err != nil {
			return err
		}
	}
	return nil
}

// write writes the archive of files, which are sources by places.
func write(out string, files map[string]string) (err error) {
	archive, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, archive.Close()) }()
	var records []cpio.Record
	for _, place := range slices.Sorted(maps.Keys(files)) {
		content, err := os.ReadFile(files[place])
		if err != nil {
			return err
		}
		records = append(records, cpio.StaticFile(strings.TrimPrefix(place, "/"), string(content), programMode))
	}
	cpio.MakeAllReproducible(records)
	writer := cpio.NewDedupWriter(cpio.Newc.Writer(archive))
	if err := cpio.WriteRecordsAndDirs(writer, records); err != nil {
		return err
	}
	return cpio.WriteTrailer(writer)
}
