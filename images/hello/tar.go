package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// archive is tar as "kubectl cp" calls it in a container: "tar cf - PATH" writes the files at a path to stdout, and
// "tar -xmf - -C DIR" unpacks stdin into a directory. It returns the exit code.
func archive(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	dir, mode, paths := ".", "", []string(nil)
	for i := 0; i < len(args); i++ {
		switch arg := args[i]; {
		case arg == "-C" && i+1 < len(args):
			i++
			dir = args[i]
		case mode == "" && strings.HasSuffix(arg, "f"):
			mode = strings.TrimPrefix(arg, "-")
		case strings.HasPrefix(arg, "--") || arg == "-":
		default:
			paths = append(paths, arg)
		}
	}
	var err error
	switch {
	case strings.HasPrefix(mode, "c") && len(paths) > 0:
		err = pack(paths, stdout)
	case strings.HasPrefix(mode, "x"):
		err = unpack(dir, stdin)
	default:
		fmt.Fprintln(stderr, "tar: use tar cf - PATH or tar xf - -C DIR")
		return usageCode
	}
	if err != nil {
		fmt.Fprintln(stderr, "tar:", err)
		return 2
	}
	return 0
}

// pack writes files and directories with their contents. A leading slash of a name is removed, as by tar.
func pack(paths []string, out io.Writer) error {
	w := tar.NewWriter(out)
	for _, path := range paths {
		err := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return packOne(w, name, entry)
		})
		if err != nil {
			return err
		}
	}
	return w.Close()
}

func packOne(w *tar.Writer, name string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() && !info.IsDir() {
		return nil
	}
	header, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return err
	}
	header.Name = strings.TrimPrefix(name, "/")
	if err := w.WriteHeader(header); err != nil || info.IsDir() {
		return err
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, file)
	return errors.Join(err, file.Close())
}

// unpack creates files and directories below a directory, and nothing outside of it.
func unpack(dir string, in io.Reader) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	for r := tar.NewReader(in); err == nil; {
		var header *tar.Header
		if header, err = r.Next(); err == nil {
			err = unpackOne(root, header, r)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return errors.Join(err, root.Close())
}

func unpackOne(root *os.Root, header *tar.Header, content io.Reader) error {
	name, mode := filepath.Clean(header.Name), header.FileInfo().Mode().Perm()
	switch header.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, mode)
	case tar.TypeReg:
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, content)
		return errors.Join(err, file.Close())
	default:
		return nil
	}
}
