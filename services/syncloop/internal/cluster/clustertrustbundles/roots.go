package clustertrustbundles

import (
	"bytes"
	"encoding/pem"
	"maps"
	"slices"
)

// pemCertificate is the type of a certificate's PEM block.
const pemCertificate = "CERTIFICATE"

// roots returns the certificates of some bundles as PEM, each once, in an order that depends only on the certificates.
func roots(bundles []*bundle) []byte {
	found := map[string]bool{}
	for _, one := range bundles {
		for block, rest := pem.Decode([]byte(one.text)); block != nil; block, rest = pem.Decode(rest) {
			found[string(block.Bytes)] = true
		}
	}
	var text bytes.Buffer
	for _, der := range slices.Sorted(maps.Keys(found)) {
		text.Write(pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: []byte(der)}))
	}
	return text.Bytes()
}
