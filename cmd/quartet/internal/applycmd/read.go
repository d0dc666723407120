package applycmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// maxFile bounds the size of one file.
const maxFile = 10 << 20

// standardInput is the argument for standard input.
const standardInput = "-"

// item is one pod, config map, secret or claim of a manifest, or an error in its place.
type item struct {
	// file is the name of its file, and document the number of its document from 1, or 0 if there is only one.
	file     string
	document int
	// place is its position in a list, as "items[1], line 12"; empty outside of a list.
	place string
	// name is its name, as far as it is readable.
	name objectName
	// pod is the decoded pod, and object the encoded object of another kind, unless err is set.
	pod    *v1.Pod
	object []byte
	err    error
}

// String returns the place and the name of the item.
func (i item) String() string {
	where := i.file
	if i.document > 0 {
		where += fmt.Sprintf(": document %d", i.document)
	}
	if i.place != "" {
		where += ": " + i.place
	}
	if i.name.name != "" {
		where += ": " + i.name.String()
	}
	return where
}

// items calls visit for each item in the files, directories and standard input that paths name. It checks first that
// all paths exist, so that a mistyped name changes nothing.
func items(paths []string, stdin io.Reader, visit func(item) error) error {
	var files []string
	for _, path := range paths {
		found, err := filesOf(path)
		if err != nil {
			return err
		}
		files = append(files, found...)
	}
	for _, file := range files {
		read := itemsOf
		if file == standardInput {
			read = func(_ string, visit func(item) error) error { return itemsIn("standard input", stdin, visit) }
		}
		if err := read(file, visit); err != nil {
			return err
		}
	}
	return nil
}

// filesOf returns the manifests of a directory, or the path itself.
func filesOf(path string) ([]string, error) {
	if path == standardInput {
		return []string{path}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("reading the manifests: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("reading the manifests: %w", err)
	}
	var files []string
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			files = append(files, filepath.Join(path, name))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no manifests: they are files that end in .yaml, .yml or .json", path)
	}
	return files, nil
}

// itemsOf visits the items of one file. An unreadable file does not affect others.
func itemsOf(path string, visit func(item) error) (err error) {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		err = errors.New("it is a directory")
	}
	if err != nil {
		return visit(item{file: path, err: err})
	}
	file, err := os.Open(path)
	if err != nil {
		return visit(item{file: path, err: err})
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return itemsIn(path, file, visit)
}

// itemsIn visits the items of a stream.
func itemsIn(name string, from io.Reader, visit func(item) error) error {
	data, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("it has more than %d MiB", maxFile>>20)
	}
	if err != nil {
		return visit(item{file: name, err: err})
	}
	documents := documentsOf(data)
	if len(documents) == 0 {
		return visit(item{file: name, err: errors.New("it is empty: write a Pod, a ConfigMap, a Secret or a PersistentVolumeClaim into it")})
	}
	for n, d := range documents {
		for _, i := range d.items() {
			i.file = name
			if len(documents) > 1 {
				i.document = n + 1
			}
			if err := visit(i); err != nil {
				return err
			}
		}
	}
	return nil
}
