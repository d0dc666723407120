package registry

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
)

const (
	manifestType = "application/vnd.docker.distribution.manifest.v2+json"
	configType   = "application/vnd.docker.container.image.v1+json"
	layerType    = "application/vnd.docker.image.rootfs.diff.tar.gzip"
)

// archive is an image of docker save.
type archive struct {
	config map[string]any
	diffs  []any
	layers [][]byte
}

// image is the served image of a repository.
type image struct {
	manifest []byte
	// blobs has the blobs by digest; own is the digest of the layer that no other repository has.
	blobs map[string][]byte
	own   string
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// readArchive reads an archive with one image.
func readArchive(path string) (archive, error) {
	file, err := os.Open(path)
	if err != nil {
		return archive{}, fmt.Errorf("%w: run make pod-images", err)
	}
	defer file.Close() //nolint:errcheck // nothing was written
	files := map[string][]byte{}
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return archive{}, fmt.Errorf("%s: %w", path, err)
		}
		if files[header.Name], err = io.ReadAll(r); err != nil {
			return archive{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	var saved []struct {
		Config string
		Layers []string
	}
	if err := json.Unmarshal(files["manifest.json"], &saved); err != nil || len(saved) != 1 {
		return archive{}, fmt.Errorf("%s: manifest.json has %d images (%w), want one", path, len(saved), err)
	}
	a := archive{}
	if err := json.Unmarshal(files[saved[0].Config], &a.config); err != nil {
		return archive{}, fmt.Errorf("%s: %s: %w", path, saved[0].Config, err)
	}
	rootfs, _ := a.config["rootfs"].(map[string]any)
	a.diffs, _ = rootfs["diff_ids"].([]any)
	if len(a.diffs) != len(saved[0].Layers) {
		return archive{}, fmt.Errorf("%s: %s: rootfs.diff_ids has %d layers, not %d", path, saved[0].Config, len(a.diffs), len(saved[0].Layers))
	}
	for _, layer := range saved[0].Layers {
		a.layers = append(a.layers, files[layer])
	}
	return a, nil
}

// variant returns the image with one more layer, which only this repository has, so that no client has it already.
func (a archive) variant(repository string) image {
	plain := ownLayer(repository)
	packed := pack(plain)
	config := maps.Clone(a.config)
	config["rootfs"] = map[string]any{"type": "layers", "diff_ids": append(slices.Clone(a.diffs), digest(plain))}
	delete(config, "history") // it would have to have an entry for each layer
	blob := must(json.Marshal(config))
	img := image{blobs: map[string][]byte{digest(blob): blob}, own: digest(packed)}
	type descriptor struct {
		MediaType string `json:"mediaType"`
		Size      int    `json:"size"`
		Digest    string `json:"digest"`
	}
	var layers []descriptor
	for _, layer := range append(slices.Clone(a.layers), packed) {
		img.blobs[digest(layer)] = layer
		layers = append(layers, descriptor{layerType, len(layer), digest(layer)})
	}
	img.manifest = must(json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": descriptor{configType, len(blob), digest(blob)}, "layers": layers,
	}))
	return img
}

// ownLayer returns a tar of one file with the name of the repository, large enough for a connection that breaks in the
// middle.
func ownLayer(repository string) []byte {
	content := bytes.Repeat([]byte(repository+"\n"), 1<<10)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	check(w.WriteHeader(&tar.Header{Name: "repository", Mode: 0o444, Size: int64(len(content)), Typeflag: tar.TypeReg}))
	must(w.Write(content))
	check(w.Close())
	return out.Bytes()
}

func pack(content []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	must(w.Write(content))
	check(w.Close())
	return out.Bytes()
}

// must and check are for calls that cannot fail in memory.
func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
