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

// maxFile bounds what is read of one file.
const maxFile = 10 << 20

// standardInput is how the standard input is named.
const standardInput = "-"

// item is one pod, config map or secret of a manifest, or what stands in the place of one.
type item struct {
	// file is where it stands; document counts the documents of the file from 1, and is 0 when there is one only.
	file     string
	document int
	// place is where it stands in the list that the document is, as "items[1], line 12"; empty when the document is no list.
	place string
	// name says which one it is, as far as it can be told.
	name objectName
	// pod is what the item says of a pod, and object the bytes of a v1.ConfigMap or v1.Secret, unless err says why it is none.
	pod    *v1.Pod
	object []byte
	err    error
}

// String says where the item stands, and which one it is.
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

// items calls visit with each item of the files, of the manifests of directories and of the standard input that paths name.
// Whether all are there is found out first: who mistypes a name changes nothing.
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

// filesOf returns the manifests of a directory, or what is named itself.
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

// itemsOf visits the items of one file. That it cannot be read is of no concern to others.
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
		return visit(item{file: name, err: errors.New("it is empty: write a Pod, a ConfigMap or a Secret into it")})
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
