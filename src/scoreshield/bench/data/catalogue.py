"""The official data sets: which files, from where, with which checksum, under which terms.

A checksum is the one its owners publish, or the one that well-known libraries or several independent projects check.
Checksums detect damaged and wrong files. MD5 does not detect a file that was forged on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteFile:
    """One file to fetch.

    Attributes:
        name: Its name in the cache, which is the name that its owners use.
        address: Where its owners, or those who keep it for them, offer it.
        checksum: "md5:..." or "sha256:...".
        size: In bytes, where it is known; a server that sends more is cut off.
    """

    name: str
    address: str
    checksum: str
    size: int | None = None


@dataclass(frozen=True)
class OfficialSet:
    """One official data set: its files, their terms of use, and the work to cite."""

    title: str
    files: tuple[RemoteFile, ...]
    terms: str
    citation: str

    def file(self, name: str) -> RemoteFile:
        """Return the file of this name."""
        return next(file for file in self.files if file.name == name)


_LFW_TERMS = (
    "Research set of people's faces, without a licence; no commercial use, and no further publication of faces."
)
_LFW_CITATION = (
    "Huang, Ramesh, Berg and Learned-Miller, Labeled Faces in the Wild, University of Massachusetts report 07-49 (2007)"
)
# scikit-learn's LFW loader names this copy and checks this sum; the owners' own server is gone.
_LFW_PAIRS = RemoteFile(
    "pairs.txt",
    "https://ndownloader.figshare.com/files/5976006",
    "sha256:ea42330c62c92989f9d7c03237ed5d591365e89b3e649747777b70e692dc1592",
    155_335,
)

CATALOGUE: dict[str, OfficialSet] = {
    # Both sums stand on the owners' page, https://www.cs.toronto.edu/~kriz/cifar.html.
    "cifar-10": OfficialSet(
        "CIFAR-10, binary version",
        (
            RemoteFile(
                "cifar-10-binary.tar.gz",
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
                170_052_171,
            ),
        ),
        "No licence stated; cite the report.",
        "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, University of Toronto (2009)",
    ),
    "cifar-100": OfficialSet(
        "CIFAR-100, binary version",
        (
            RemoteFile(
                "cifar-100-binary.tar.gz",
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "md5:03b5dce01913d631647c71ecec9e9cb8",
                168_513_733,
            ),
        ),
        "No licence stated; cite the report.",
        "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, University of Toronto (2009)",
    ),
    # torchvision's oxford_iiit_pet checks these sums.
    "oxford-iiit-pet": OfficialSet(
        "Oxford-IIIT Pet",
        (
            RemoteFile(
                "images.tar.gz",
                "https://www.robots.ox.ac.uk/~vgg/data/pets/data/images.tar.gz",
                "md5:5c4f3ee8e5d25df40f4fd59a7f44e54c",
                791_918_971,
            ),
            RemoteFile(
                "annotations.tar.gz",
                "https://www.robots.ox.ac.uk/~vgg/data/pets/data/annotations.tar.gz",
                "md5:95a8c909bbe2e81eed6a22bccdf3f68f",
            ),
        ),
        "CC BY-SA 4.0; the pictures remain their owners'.",
        "Parkhi, Vedaldi, Zisserman and Jawahar, Cats and Dogs, CVPR (2012)",
    ),
    # torchtext's STSB checks this sum.
    "stsb": OfficialSet(
        "STS Benchmark",
        (
            RemoteFile(
                "Stsbenchmark.tar.gz",
                "https://ixa2.si.ehu.eus/stswiki/images/4/48/Stsbenchmark.tar.gz",
                "md5:4eb0065aba063ef77873d3a9c8088811",
            ),
        ),
        "Scores CC BY-SA 4.0; each text under the terms of its source.",
        "Cer, Diab, Agirre, Lopez-Gazpio and Specia, SemEval-2017 Task 1, SemEval (2017)",
    ),
    # The owners publish the sum beside the file, as ml-100k.zip.md5.
    "movielens-100k": OfficialSet(
        "MovieLens 100K",
        (
            RemoteFile(
                "ml-100k.zip",
                "https://files.grouplens.org/datasets/movielens/ml-100k.zip",
                "md5:0e33842e24a9c977be4e0107933c0723",
                4_924_029,
            ),
        ),
        "Research only; no commercial use and no redistribution without permission.",
        "Harper and Konstan, The MovieLens Datasets, ACM TiiS 5(4) (2015)",
    ),
    # The sum of torchvision's LFW, which no longer downloads it: the owners' server is gone.
    "lfw-deepfunneled": OfficialSet(
        "Labeled Faces in the Wild, deep-funneled",
        (
            _LFW_PAIRS,
            RemoteFile(
                "lfw-deepfunneled.tgz",
                "https://vis-www.cs.umass.edu/lfw/lfw-deepfunneled.tgz",
                "md5:68331da3eb755a505a502b5aacb3c201",
            ),
        ),
        _LFW_TERMS,
        _LFW_CITATION + "; Huang, Mattar, Lee and Learned-Miller, Learning to Align from Scratch, NIPS (2012)",
    ),
    # scikit-learn's LFW loader names this copy and checks this sum.
    "lfw-funneled": OfficialSet(
        "Labeled Faces in the Wild, funneled",
        (
            _LFW_PAIRS,
            RemoteFile(
                "lfw-funneled.tgz",
                "https://ndownloader.figshare.com/files/5976015",
                "sha256:b47c8422c8cded889dc5a13418c4bc2abbda121092b3533a83306f90d900100a",
                243_346_528,
            ),
        ),
        _LFW_TERMS,
        _LFW_CITATION,
    ),
    # The owners publish no sum; independent projects that evaluate on FRAMES agree on this one for this revision.
    "frames": OfficialSet(
        "FRAMES",
        (
            RemoteFile(
                "test.tsv",
                "https://huggingface.co/datasets/google/frames-benchmark/resolve/"
                "58d9fb6330f3ab1316d1eca12e5e8ef23dcc22ef/test.tsv",
                "sha256:4255093c93b595b5b04c7c8dde290b48ec87d72ca0fb0b760d9dd02740d669ff",
                484_887,
            ),
        ),
        "Apache-2.0.",
        "Krishna and others, Fact, Fetch, and Reason, arXiv 2409.12941 (2024)",
    ),
    # The sum stands in BEIR's README.
    "scifact": OfficialSet(
        "SciFact, as BEIR gives it",
        (
            RemoteFile(
                "scifact.zip",
                "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/scifact.zip",
                "md5:5f7d1de60b170fc8027bb7898e2efca1",
                2_816_079,
            ),
        ),
        "Distributed under differing terms (CC BY-NC 2.0, CC BY-SA 4.0): check before any use but research.",
        "Wadden and others, Fact or Fiction, EMNLP (2020); Thakur and others, BEIR, NeurIPS Datasets (2021)",
    ),
}
