package dockerhost

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// manifestFile is the part of an image archive that names its images.
const manifestFile = "manifest.json"

// nameIn returns the name of the only image in an archive.
func nameIn(archive string) (ref string, err error) {
	file, err := os.Open(archive)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return "", fmt.Errorf("%s is no image archive: it has no %s", archive, manifestFile)
		}
		if err != nil {
			return "", fmt.Errorf("reading %s: %w", archive, err)
		}
		if header.Name != manifestFile {
			continue
		}
		var images []struct{ RepoTags []string }
		if err := json.NewDecoder(r).Decode(&images); err != nil {
			return "", fmt.Errorf("reading %s in %s: %w", manifestFile, archive, err)
		}
		if len(images) != 1 || len(images[0].RepoTags) != 1 {
			return "", fmt.Errorf("%s must have one image with one name: %+v", archive, images)
		}
		return images[0].RepoTags[0], nil
	}
}
