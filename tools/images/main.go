// Command images creates an image archive from static programs, or from dynamic ones whose loader and libraries are
// named as well: a single layer with these files and their directories, and a configuration that runs one of the
// programs. The archive is in docker's format, which `docker load` and `ctr images import` read; no engine and no
// registry is involved. The same files give the same archive, byte for byte.
//
//	images -file bin/pleg -user 0:10240 -label org.opencontainers.image.title=pleg \
//	    -name quartet.local/pleg:dev -out bin/images/pleg.tar
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "images: %v\n", err)
		os.Exit(1)
	}
}

// run is main without the process's globals.
func run(args []string, stderr io.Writer) error {
	spec, out, err := parse(args, stderr)
	if err != nil {
		return err
	}
	tag, err := spec.tag()
	if err != nil {
		return err
	}
	img, err := spec.image()
	if err != nil {
		return fmt.Errorf("making %s: %w", spec.name, err)
	}
	return write(out, tag, img)
}

// parse parses the command line into the image's contents and the path of the archive.
func parse(args []string, stderr io.Writer) (imageSpec, string, error) {
	spec := imageSpec{labels: map[string]string{}}
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	flags.SetOutput(stderr)
	out := flags.String("out", "", "path of the archive")
	flags.StringVar(&spec.name, "name", "", "name of the image with its tag")
	flags.StringVar(&spec.user, "user", "", "numeric user and group of the program: 10241:10240 (empty: root)")
	flags.Func("file", "file of the image, as PATH (placed at the root), PATH=/PLACE or PATH=/PLACE=MODE; repeatable", func(v string) error {
		file, err := parseFile(v)
		spec.files = append(spec.files, file)
		return err
	})
	flags.Func("link", "symbolic link, as /PLACE=TARGET; repeatable", func(v string) error {
		link, err := parseLink(v)
		spec.links = append(spec.links, link)
		return err
	})
	flags.Func("dir", "empty directory, as /PLACE=MODE:UID:GID; repeatable", func(v string) error {
		dir, err := parseDir(v)
		spec.dirs = append(spec.dirs, dir)
		return err
	})
	flags.Func("entrypoint", "entry point: the program with its first arguments, separated by spaces (default: the first file; empty: none, -cmd has the program)", func(v string) error {
		spec.entrypoint = strings.Fields(v)
		spec.noEntrypoint = len(spec.entrypoint) == 0
		return nil
	})
	flags.Func("cmd", "default arguments after the entry point, separated by spaces", func(v string) error {
		spec.cmd = strings.Fields(v)
		return nil
	})
	flags.Func("env", "environment variable, as NAME=VALUE; repeatable", func(v string) error {
		if name, _, found := strings.Cut(v, "="); !found || name == "" {
			return fmt.Errorf("it is not NAME=VALUE")
		}
		spec.env = append(spec.env, v)
		return nil
	})
	flags.Func("label", "label, as NAME=VALUE; repeatable", func(v string) error {
		name, value, found := strings.Cut(v, "=")
		if !found || name == "" {
			return fmt.Errorf("it is not NAME=VALUE")
		}
		spec.labels[name] = value
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return imageSpec{}, "", err
	}
	switch {
	case flags.NArg() > 0:
		return imageSpec{}, "", fmt.Errorf("%q is not a flag: give each file with -file", flags.Arg(0))
	case *out == "":
		return imageSpec{}, "", fmt.Errorf("-out is missing: it is the path of the archive")
	case len(spec.files) == 0:
		return imageSpec{}, "", fmt.Errorf("-file is missing: it is the program of the image")
	}
	return spec, *out, spec.check()
}
